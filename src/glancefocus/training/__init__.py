"""Learning: initialise the encoders, then three stages (or one joint stage), resumable at any moment."""
