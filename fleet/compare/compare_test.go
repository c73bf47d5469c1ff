package compare

import (
	"fmt"
	"strings"
	"testing"
)

func TestRank(t *testing.T) {
	tests := []struct {
		name         string
		failed, well int
		values       string // fact:value=failed/well
		want         string
	}{
		{"nothing", 0, 0, "", ""},
		{"no failures", 0, 90, "board:a=0/90", ""},
		{"four failures are too few", 4, 90, "board:a=4/0", ""},
		{"five suffice", 5, 90, "board:a=5/9", "board:a"},
		{"four with the value are too few", 10, 90, "board:a=4/0", ""},
		{"nothing to compare with", 50, 4, "board:a=50/0", ""},
		{"the same on both sides", 50, 50, "board:a=40/40 board:b=10/10", ""},
		{"a gap below a fifth", 500, 500, "board:a=300/210", ""},
		{"a gap of a fifth", 500, 500, "board:a=300/200", "board:a"},
		{"a gap that may be chance", 6, 6, "board:a=5/3", ""},
		{"more frequent where it went well", 50, 50, "board:a=5/45", ""},
		{"the largest gap first", 100, 100, "board:a=60/30 signal:-80=90/10 version:2=70/20", "signal:-80 version:2 board:a"},
		{"the best of bands", 100, 100, "signal:-70=95/60 signal:-80=83/12 signal:-85=40/5", "signal:-80"},
		{"the narrowest of equal bands", 100, 100, "signal:-70=83/12 signal:-85=83/12 signal:-80=83/12", "signal:-85"},
		{"a room and not its site", 100, 100, "place:s=80/50 place:s/r=78/4 place:s/q=2/40", "place:s/r"},
		{"a site and not its rooms", 100, 100, "place:s=90/10 place:s/r=45/5 place:s/q=45/5", "place:s"},
		{"sites with similar names", 100, 100, "place:s=45/5 place:s-1=44/5", "place:s place:s-1"},
		{"two networks", 100, 100, "network:10.0.0.0/24=40/1 network:10.0.1.0/24=30/1", "network:10.0.0.0/24 network:10.0.1.0/24"},
		{"the same gap", 100, 100, "version:2=60/20 board:b=60/20 board:a=60/20", "board:a board:b version:2"},
		{"at most eight", 100, 100, "network:a=50/1 network:b=50/1 network:c=50/1 network:d=50/1 " +
			"network:e=50/1 network:f=50/1 network:g=50/1 network:h=50/1 network:i=50/1",
			"network:a network:b network:c network:d network:e network:f network:g network:h"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Counts{Failed: tt.failed, Well: tt.well, Known: map[Fact]Count{}}
			for part := range strings.FieldsSeq(tt.values) {
				var v Count
				fact, rest, _ := strings.Cut(part, ":")
				value, numbers, _ := strings.Cut(rest, "=")
				v.Fact, v.Value = Fact(fact), value
				if _, err := fmt.Sscanf(numbers, "%d/%d", &v.Failed, &v.Well); err != nil {
					t.Fatal(err)
				}
				c.Values = append(c.Values, v)
				c.Known[v.Fact] = Count{Fact: v.Fact, Failed: tt.failed, Well: tt.well}
			}
			var got []string
			for _, d := range Rank(c) {
				got = append(got, string(d.Fact)+":"+d.Value)
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%q, want %q", strings.Join(got, " "), tt.want)
			}
		})
	}
}

// A share is that of the devices that have a value of the fact.
func TestRankCountsWhatIsKnown(t *testing.T) {
	c := Counts{Failed: 100, Well: 1000, Values: []Count{{Signal, "-80", 18, 12}},
		Known: map[Fact]Count{Signal: {Failed: 20, Well: 100}}}
	all := Rank(c)
	if len(all) != 1 || all[0].FailedShare() != 0.9 || all[0].WellShare() != 0.12 {
		t.Errorf("%+v", all)
	}
	c.Known = nil
	if all := Rank(c); len(all) != 0 {
		t.Errorf("without a known side: %+v", all)
	}
}
