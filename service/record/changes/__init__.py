"""What changes an experiment that was posted: control, reopening, retention."""
