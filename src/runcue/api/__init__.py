"""What users hold: a Cue, a Reader, maps over many items. Every method hands over to the part that does it."""
