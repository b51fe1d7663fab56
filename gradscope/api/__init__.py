"""One public name, one file: what `gradscope.<name>` is."""
