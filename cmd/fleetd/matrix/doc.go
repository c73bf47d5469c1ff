// Package matrix contains only tests. One table states which principal may do
// which action, and the tests try each combination on a real server with a real
// database, a real broker and simulated devices.
//
// The tests check effects: the rows that changed, as recorded by triggers of
// the database, and the tools that ran on the devices. A status alone proves
// nothing. The tests state the rules again, in a few lines, and share no code
// with the server's. If the tests do not list an operation of REST or a table
// of the database, they fail.
package matrix
