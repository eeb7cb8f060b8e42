"""Against real hardware: records of measured programs, and how far off the predictions are."""
