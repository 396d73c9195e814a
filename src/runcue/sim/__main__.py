"""`python -m runcue.sim` is `runcue-sim`."""

from runcue.sim.main import main

main()
