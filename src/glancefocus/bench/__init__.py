"""Wall clock: how long looks take, against the plain backbone, and where the time goes."""
