print("package imported", __name__, __file__)
