"""Sixty units, linked; objects.json tells what each of them was."""
