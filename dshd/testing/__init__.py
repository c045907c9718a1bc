"""What tests of dshd and of plugins stand on: a real kernel for one test, and the doubles for model, clock and wire."""
