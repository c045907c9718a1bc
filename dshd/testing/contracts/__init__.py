"""What implementations of a seam have in common, as a suite of tests for each seam.

Who implements one subclasses its suite in a test module of their own and says how it is set up; the tests come with it.
They are async methods, so the module marks itself for anyio:

    pytestmark = pytest.mark.anyio

    class TestMine(AdapterContract):
        …

A failed test says in its message what the contract asks.
"""
