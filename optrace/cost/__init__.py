"""What each call costs: counts by rule and schema first, then the times that a profile derives from them."""
