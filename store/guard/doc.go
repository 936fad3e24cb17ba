// Package guard stands in front of a store of rate limits and decides without
// it while it cannot be reached: each rule is then counted in this process, lets
// everything pass, or refuses. The store may be any ratelimit.Store.
package guard
