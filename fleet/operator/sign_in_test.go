package operator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// signIns is a store of operators by name.
type signIns struct {
	operator.Store
	by map[string]operator.Operator
}

func (s signIns) OperatorByName(_ context.Context, name string) (operator.Operator, error) {
	if o, ok := s.by[name]; ok {
		return o, nil
	}
	return operator.Operator{}, fleet.ErrNotFound
}

// An unknown name, a disabled operator and a wrong password get the same refusal, and each
// costs a comparison.
func TestSignInRefusesAlike(t *testing.T) {
	const secret = "correct horse battery"
	hash, err := operator.HashPassword("ann", secret)
	if err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	operators := operator.New(signIns{by: map[string]operator.Operator{"ann": {Name: "ann", PasswordHash: hash},
		"bob": {Name: "bob", PasswordHash: hash, DisabledAt: &gone}}})
	if _, err := operators.SignIn(t.Context(), "ann", secret); err != nil {
		t.Fatal(err)
	}
	_, wrong := operators.SignIn(t.Context(), "ann", "another one")
	for name, try := range map[string][2]string{"no such name": {"cat", secret}, "no such name, no password": {"cat", ""},
		"disabled": {"bob", secret}} {
		begun := time.Now()
		_, err := operators.SignIn(t.Context(), try[0], try[1])
		if !errors.Is(err, fleet.ErrForbidden) || err.Error() != wrong.Error() {
			t.Errorf("%s: %v, want %v", name, err, wrong)
		}
		if took := time.Since(begun); took < time.Millisecond { // a comparison takes about 20 ms
			t.Errorf("%s is refused in %v", name, took)
		}
	}
}
