"""What the Organized Attention paper says, as test statistics with intervals and one rule for verdicts."""
