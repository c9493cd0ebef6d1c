"""A run that continues: what its checkpoint must hold, what may have changed, and where its loops and data stand."""
