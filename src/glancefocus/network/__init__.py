"""The network: encoders, classifier, policy. It does not depend on stopping, data or training."""
