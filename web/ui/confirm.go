package ui

// ConfirmField is the password in the form of a [ConfirmPage].
const ConfirmField = "confirm_password"

// A ConfirmPage asks for the viewer's password before an act. Its form sends what
// was sent before, to the same address.
type ConfirmPage struct {
	Path    string // that was sent to
	Name    string // of the viewer
	Fields  []ConfirmedField
	Problem string // why the password was not accepted, in the page's language
}

// A ConfirmedField is one value of the form that was sent.
type ConfirmedField struct{ Name, Value string }
