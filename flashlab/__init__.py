"""flashlab"""
