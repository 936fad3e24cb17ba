package redisstore

// PrefixOf is the prefix of a store's keys.
func PrefixOf(s *Store) string { return s.prefix }
