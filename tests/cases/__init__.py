"""What users of such systems really hit, one test per case."""
