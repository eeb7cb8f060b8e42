"""GPU and host profiles as data files; ``optrace.cost.profiles`` reads them."""
