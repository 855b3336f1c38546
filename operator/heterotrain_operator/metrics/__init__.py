"""Reading what workers measure."""
