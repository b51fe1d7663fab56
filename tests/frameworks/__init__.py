"""Programs that train inside of other people's frameworks, healthy and with a hazard."""
