"""What TensorBoard shows of a study: a run for each trial, and one for the ledger."""
