"""Which system was better, by how much, and how sure that is."""
