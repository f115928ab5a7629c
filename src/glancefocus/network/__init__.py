"""The network: encoders, classifier, policy. It knows nothing of stopping, data or training."""
