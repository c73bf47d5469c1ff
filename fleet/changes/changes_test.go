package changes

import (
	"fmt"
	"strings"
	"testing"

	"fleetd/fleet"
)

func TestDifference(t *testing.T) {
	counts := func(text string) (all []fleet.DeviceCount) {
		for part := range strings.FieldsSeq(text) {
			var c fleet.DeviceCount
			value, n, _ := strings.Cut(part, "=")
			c.Value = value
			_, _ = fmt.Sscan(n, &c.Count)
			all = append(all, c)
		}
		return all
	}
	for _, tt := range []struct{ name, before, now, want string }{
		{"nothing", "", "", ""},
		{"same", "1=5 2=3", "2=3 1=5", ""},
		{"moved", "1=5 2=3", "1=1 2=7", "1:5>1 2:3>7"},
		{"gained and lost", "1=2", "3=9", "3:0>9 1:2>0"},
		{"unknown is none", "=5", "=2 1=1", "1:0>1"},
		{"the largest first", "a=1 b=1", "a=2 b=9", "b:1>9 a:1>2"},
		{"many", "", "a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1 i=1", "a:0>1 b:0>1 c:0>1 d:0>1 e:0>1 f:0>1 g:0>1 h:0>1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var texts []string
			for _, v := range difference(counts(tt.before), counts(tt.now)) {
				texts = append(texts, fmt.Sprintf("%s:%d>%d", v.Version, v.Before, v.Now))
			}
			if got := strings.Join(texts, " "); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}
