"""An HTTP server that pools requests look by look, the controller of its budget, its page, and a client."""
