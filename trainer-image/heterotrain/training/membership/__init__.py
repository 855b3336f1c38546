"""How a worker comes to train with others: it joins them, goes over to other members with them, or meets them again."""
