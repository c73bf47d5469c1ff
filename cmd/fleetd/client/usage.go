package client

// A UsageError is a mistake on the command line that only the command itself
// could find.
type UsageError struct{ error }
