package fleet

import (
	"errors"
	"testing"
	_ "time/tzdata" // the machine may lack time zones
)

func TestDeviceZone(t *testing.T) {
	for name, want := range map[string]string{"": "", " Asia/Shanghai ": "Asia/Shanghai", "UTC": "UTC"} {
		p := DevicePatch{TimeZone: &name}
		if err := p.clean(); err != nil || *p.TimeZone != want {
			t.Errorf("%q became %q, %v", name, *p.TimeZone, err)
		}
	}
	for _, name := range []string{"Local", "Asia/Nowhere", "../../etc/passwd", "UTC\x00", "asia shanghai", "+08:00"} {
		var e *Error
		p := DevicePatch{TimeZone: &name}
		if err := p.clean(); !errors.As(err, &e) || e.Code != "invalid_time_zone" || e.Field != "time_zone" {
			t.Errorf("%q: %v", name, err)
		}
	}
}
