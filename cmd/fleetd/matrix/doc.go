// Package matrix holds tests alone. They state, in one table, which
// principal may do what, and try each combination on a real server with a real
// database, a real broker and simulated devices.
//
// They judge effects: the rows that changed, as triggers of the database noted
// them, and the tools that ran on the devices. A status alone proves nothing.
// The rules are stated again here, in a few lines, and share no code with the
// server's. An operation of REST or a table of the database that the tests do
// not list fails them.
package matrix
