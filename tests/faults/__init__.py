"""What goes wrong around a program, and what gradscope promises of it; docs/reliability.md is made from these tests."""
