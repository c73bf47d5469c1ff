package ui

// A Completion proposes how the last word of a filter may go on: GET [PathComplete].
type Completion struct {
	Word    string // the word, as written
	Options []CompletionOption
}

// A CompletionOption is what the word may become.
type CompletionOption struct {
	Text    string
	Count   int // devices that it finds, together with the words before it
	Counted bool
	Example string // of a field
	Open    bool   // a value is to follow
}
