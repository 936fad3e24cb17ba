package sqlitestore

func child(what string) int { return 2 }
