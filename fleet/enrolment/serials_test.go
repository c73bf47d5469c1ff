package enrolment_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/web/i18n"
)

// serialStore stores serial numbers in memory, by the rules of the database.
type serialStore struct {
	mu   sync.Mutex
	rows map[string]enrolment.SerialKey
	away bool
}

func (s *serialStore) do(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errAway
	}
	return f()
}

func (s *serialStore) SerialKeys(context.Context) (all []enrolment.SerialKey, err error) {
	err = s.do(func() error {
		for _, k := range s.rows {
			all = append(all, k)
		}
		return nil
	})
	return all, err
}

func (s *serialStore) AddSerials(_ context.Context, _ fleet.Principal, keys []enrolment.SerialKey) error {
	return s.do(func() error {
		if s.rows == nil {
			s.rows = make(map[string]enrolment.SerialKey)
		}
		for _, k := range keys {
			s.rows[k.Serial] = k
		}
		return nil
	})
}

func (s *serialStore) change(serial string, f func(*enrolment.SerialKey)) error {
	return s.do(func() error {
		k := s.rows[serial]
		f(&k)
		s.rows[serial] = k
		return nil
	})
}

func (s *serialStore) BindSerial(_ context.Context, _ fleet.Principal, serial string, id fleet.DeviceID,
	at time.Time) error {
	return s.change(serial, func(k *enrolment.SerialKey) { k.Device, k.BoundAt = id, &at })
}

func (s *serialStore) SetSerialConflict(_ context.Context, _ fleet.Principal, serial string, id fleet.DeviceID,
	at time.Time) error {
	return s.change(serial, func(k *enrolment.SerialKey) { k.ConflictDevice, k.ConflictAt = id, &at })
}

func (s *serialStore) ReleaseSerial(_ context.Context, _ fleet.Principal, serial string) error {
	return s.change(serial, func(k *enrolment.SerialKey) {
		k.Device, k.BoundAt, k.ConflictDevice, k.ConflictAt = "", nil, "",
			nil
	})
}

func (s *serialStore) DeleteSerial(_ context.Context, _ fleet.Principal, serial string) error {
	return s.do(func() error { delete(s.rows, serial); return nil })
}

func (s *serialStore) SaveWrongProofs(context.Context, []enrolment.WrongProofs) error { return nil }

var root = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "root", Role: fleet.RoleAdmin}

func newSerials(t testing.TB, store enrolment.SerialStore, secret []byte) *enrolment.Serials {
	t.Helper()
	sealer, err := enrolment.NewSealer(secret)
	if err != nil {
		t.Fatal(err)
	}
	s := enrolment.NewSerials(store, sealer, nil)
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

var (
	keyA = strings.Repeat("1a", 32)
	keyB = strings.Repeat("2b", 32)
)

func TestListsOfSerialNumbers(t *testing.T) {
	at := func(line int, code enrolment.LineCode) enrolment.LineProblem {
		return enrolment.LineProblem{Line: line, Code: code}
	}
	tests := []struct {
		name, list string
		added      int
		problems   []enrolment.LineProblem
		code       string
	}{
		{"two", "SN-1," + keyA + "\nSN-2," + keyB + "\n", 2, nil, ""},
		{"no end of line, capitals in the key", "SN-1," + strings.ToUpper(keyA), 1, nil, ""},
		{"a spreadsheet's", "\ufeffSerial,Key\r\n\"SN-1\", \"" + keyA + "\"\r\n\r\n# spare\r\n", 1, nil, ""},
		{"nothing", "", 0, nil, "serial_file_empty"},
		{"a heading alone", "serial,key\n", 0, nil, "serial_file_empty"},
		{"a heading further down", "SN-1," + keyA + "\nserial,key\n", 0, []enrolment.LineProblem{at(2, enrolment.LineKey)},
			""},
		{"one field", "SN-1\n", 0, []enrolment.LineProblem{at(1, enrolment.LineFields)}, ""},
		{"three fields", "SN-1," + keyA + ",x\n", 0, []enrolment.LineProblem{at(1, enrolment.LineFields)}, ""},
		{"short key", "SN-1," + keyA + "\nSN-2,11\n", 0, []enrolment.LineProblem{at(2, enrolment.LineKey)}, ""},
		{"no hex", "SN-1," + strings.Repeat("zz", 32), 0, []enrolment.LineProblem{at(1, enrolment.LineKey)}, ""},
		{"odd serial numbers", ",\nSN 1," + keyA + "\n" + strings.Repeat("x", 65) + "," + keyA + "\nSN\x00," + keyA, 0,
			[]enrolment.LineProblem{at(1, enrolment.LineSerial), at(2, enrolment.LineSerial), at(3, enrolment.LineSerial),
				at(4, enrolment.LineSerial)}, ""},
		{"twice", "SN-1," + keyA + "\n\nSN-1," + keyA, 0, []enrolment.LineProblem{{Line: 3, Code: enrolment.LineDuplicate,
			Other: 1}},
			""},
		{"a long line", "SN-1," + strings.Repeat("1", 100_000) + "\nSN-2," + keyA, 0,
			[]enrolment.LineProblem{at(1, enrolment.LineTooLong)}, ""},
		{"too large", strings.Repeat("#"+strings.Repeat("x", 300)+"\n", 60_000), 0, nil, "serial_file_too_large"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			store := &serialStore{}
			s := newSerials(t, store, testKey)
			load, err := s.LoadList(t.Context(), root, strings.NewReader(tt.list))
			var problems []enrolment.LineProblem
			var file *enrolment.SerialFileError
			if errors.As(err, &file) {
				problems = file.Problems
			}
			if diff := cmp.Diff(tt.problems, problems); diff != "" || load.Added != tt.added || len(store.rows) != tt.added {
				t.Errorf("added %d, %d stored: %v\n%s", load.Added, len(store.rows), err, diff)
			}
			var e *fleet.Error
			if errors.As(err, &e); tt.code != "" && (e == nil || e.Code != tt.code) {
				t.Errorf("error %v, want %s", err, tt.code)
			}
			if err != nil && (!errors.Is(err, fleet.ErrInvalid) || strings.Contains(err.Error(), "1a1a")) {
				t.Errorf("error %q", err)
			}
		})
	}
}

func TestALongListNamesTheFirstProblems(t *testing.T) {
	var list strings.Builder
	for i := range 500 {
		fmt.Fprintf(&list, "SN-%d,%d\n", i, i)
	}
	_, err := newSerials(t, &serialStore{}, testKey).LoadList(t.Context(), root, strings.NewReader(list.String()))
	var file *enrolment.SerialFileError
	if !errors.As(err, &file) || len(file.Problems) != 20 || file.More != 480 {
		t.Fatalf("%v: %+v", err, file)
	}
}

func TestSerialNumbersAreLoadedOnce(t *testing.T) {
	store := &serialStore{}
	s := newSerials(t, store, testKey)
	load := func(s *enrolment.Serials, list string) (enrolment.SerialLoad, error) {
		return s.LoadList(t.Context(), root, strings.NewReader(list))
	}
	if _, err := load(s, "SN-1,"+keyA); err != nil {
		t.Fatal(err)
	}
	if got, err := load(s, "SN-1,"+keyA+"\nSN-2,"+keyB); err != nil ||
		got != (enrolment.SerialLoad{Added: 1, Unchanged: 1}) {
		t.Errorf("%+v: %v", got, err)
	}
	if _, err := load(s, "SN-3,"+keyA+"\nSN-1,"+keyB); err == nil || s.Known("SN-3") {
		t.Errorf("another key for a loaded serial number: %v", err)
	}
	viewer := fleet.Principal{Kind: fleet.KindOperator, Name: "vic", Role: fleet.RoleOperator}
	if _, err := s.LoadList(t.Context(), viewer, strings.NewReader("SN-4,"+keyA)); !errors.Is(err, fleet.ErrForbidden) {
		t.Errorf("an operator's list: %v", err)
	}
	if again := newSerials(t, store, testKey); !again.Known("SN-1") || !again.Known("SN-2") || again.Known("SN-3") {
		t.Error("a restart changed what is known")
	}
	if _, err := load(newSerials(t, store, make([]byte, 32)), "SN-1,"+keyA); err == nil {
		t.Error("a key sealed with another secret was opened")
	}
	plain, _ := hex.DecodeString(keyA)
	for _, k := range store.rows {
		if bytes.Contains(k.SealedKey, plain) || strings.Contains(fmt.Sprintf("%v %+v %s", k, &k, k.LogValue()),
			string(k.SealedKey)) {
			t.Errorf("%s: the key can be read", k.Serial)
		}
		if shown, _ := s.Serial(k.Serial); shown.SealedKey != nil {
			t.Error("the key leaves the service")
		}
	}
}

func TestSerialNumbersArePaged(t *testing.T) {
	s := newSerials(t, &serialStore{}, testKey)
	var list strings.Builder
	for i := range 250 {
		fmt.Fprintf(&list, "SN-%03d,%s\n", 249-i, keyA)
	}
	if _, err := s.LoadList(t.Context(), root, strings.NewReader(list.String())); err != nil {
		t.Fatal(err)
	}
	var got []string
	f := enrolment.SerialFilter{Limit: 100}
	for pages := 0; pages == 0 || f.Cursor != ""; pages++ {
		p, err := s.List(f)
		if err != nil || pages > 3 {
			t.Fatal(pages, err)
		}
		for _, k := range p.Items {
			got = append(got, k.Serial)
		}
		f.Cursor = p.Next
	}
	if len(got) != 250 || got[0] != "SN-000" || got[249] != "SN-249" {
		t.Errorf("%d listed: %v", len(got), got)
	}
	must(t, s.Delete(t.Context(), root, "SN-100"))
	if p, err := s.List(enrolment.SerialFilter{Prefix: "SN-10"}); err != nil || len(p.Items) != 9 {
		t.Errorf("%v: %v", p.Items, err)
	}
	if _, err := s.List(enrolment.SerialFilter{Cursor: "no cursor"}); !errors.Is(err, fleet.ErrInvalid) {
		t.Error(err)
	}
	if c := s.Counts(); c != (enrolment.SerialCounts{Total: 249, Unused: 249}) {
		t.Errorf("%+v", c)
	}
}

// FuzzSerialList checks that any list is either loaded as a whole or refused with line numbers
// that exist, and that no error quotes it.
func FuzzSerialList(f *testing.F) {
	f.Add("serial,key\nSN-1," + keyA + "\nSN-1," + keyB)
	f.Add("\ufeff\"SN-1\",\"" + keyA + "\"\r\n#x\r\n\r\n,")
	f.Fuzz(func(t *testing.T, list string) {
		s := newSerials(t, &serialStore{}, testKey)
		load, err := s.LoadList(t.Context(), root, strings.NewReader(list))
		var file *enrolment.SerialFileError
		if errors.As(err, &file) {
			for _, p := range file.Problems {
				if p.Line < 1 || p.Line > strings.Count(list, "\n")+1 || i18n.Detail("error.code.", p.Reason()) == "" {
					t.Errorf("%+v", p)
				}
			}
		}
		if (err == nil) != (load.Added > 0) || s.Counts().Total != load.Added {
			t.Errorf("%+v, %+v: %v", load, s.Counts(), err)
		}
	})
}
