package ui

// ConfirmField is the password in the form of a [ConfirmPage].
const ConfirmField = "confirm_password"

// A ConfirmPage requires the viewer's password before an act. Its form sends the earlier form
// again, to the same address.
type ConfirmPage struct {
	Path    string // address of the form
	Name    string // of the viewer
	Fields  []ConfirmedField
	Problem string // why the password was rejected, in the page's language
}

// A ConfirmedField is one field of the earlier form.
type ConfirmedField struct{ Name, Value string }
