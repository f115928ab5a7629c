"""Runtimes compute the parts of a network: torch modules, ONNX Runtime, OpenVINO. The loop is the same with all of them."""
