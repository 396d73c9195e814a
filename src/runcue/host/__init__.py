"""What runcue needs of the machine it runs on: clocks, loops, descriptors, addresses."""
