// Package operator keeps the people and programs that may act: operators with passwords,
// tokens, and the sign-ins of browsers. It says who a secret belongs to, and what an
// operator or token may do; it does not judge acts.
//
// Its lock guards the tokens that were used a few seconds ago. It starts no goroutines.
package operator
