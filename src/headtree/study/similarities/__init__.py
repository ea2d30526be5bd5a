"""Which similarity of heads for which question: replication, function, roles and cost on four networks."""
