"""The live units, and everything that is counted, reserved or scheduled for them."""
