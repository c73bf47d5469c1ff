// Package operator manages the people and programs that may act: operators with passwords,
// API tokens, and the logins of browsers. It authenticates them and returns their rights; it
// does not judge acts.
//
// Its lock guards the cache of tokens that were used in the last few seconds. It starts no
// goroutines.
package operator
