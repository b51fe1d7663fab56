"""Commands that compare gradscope with what torch itself does, on code not written for it."""
