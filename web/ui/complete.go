package ui

// A Completion proposes completions of the last word of a filter: GET [PathComplete].
type Completion struct {
	Word    string // the word, as written
	Options []CompletionOption
}

// A CompletionOption is one completion of the word.
type CompletionOption struct {
	Text    string
	Count   int // devices that match it and the words before it
	Counted bool
	Example string // of a field
	Open    bool   // a value must follow
}
