package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRedactURL(t *testing.T) {
	for _, s := range []string{
		"postgres://u:sekret@db/fleet",
		"postgres://u@db/fleet?password=sekret&sslmode=require",
		"postgres://u@db/fleet?sslpassword=sekret",
		"host=db user=u password=sekret dbname=fleet",
		"postgres://u:sekret%zz@db/fleet",
	} {
		if got := redactURL(s); got == "" || strings.Contains(got, "sekret") {
			t.Errorf("redactURL(%q) = %q", s, got)
		}
	}
	const plain = "postgres://u@db/fleet?sslmode=require"
	if got := redactURL(plain); got != plain {
		t.Errorf("redactURL(%q) = %q", plain, got)
	}
	if got := redactURL(""); got != "" {
		t.Errorf("no URL became %q", got)
	}
}

// Printing the configuration shows no secret of a file.
func TestSecretsFromFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("postgres://u:SEKRET-kettle-moss@db/fleet\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := printConfig{Config{Database: Database{DatabaseURLFile: file}, AdminPasswordFile: file, VoiceSecretFile: file,
		VoiceUpstream: "ws://voice.test/", VisionURL: "http://vision.test/", VisionTokenFile: file}}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out := os.Stdout
	os.Stdout = write
	err = c.Run()
	os.Stdout = out
	write.Close()
	printed, readErr := io.ReadAll(read)
	if err != nil || readErr != nil {
		t.Fatal(err, readErr)
	}
	if strings.Contains(string(printed), "SEKRET") || strings.Count(string(printed), "(set)") != 3 {
		t.Errorf("printed %s", printed)
	}
	// The value from the file is in effect.
	used := Config{VoiceSecretFile: file}
	if err := used.readSecrets(); err != nil || used.VoiceSecret != "postgres://u:SEKRET-kettle-moss@db/fleet" {
		t.Errorf("used %q, %v", used.VoiceSecret, err)
	}
}

func TestPrefixes(t *testing.T) {
	got, err := prefixes("--trusted-proxies", []string{"10.1.2.3/8", "192.0.2.7", "2001:db8::1/32", "::1"})
	if want := "[10.0.0.0/8 192.0.2.7/32 2001:db8::/32 ::1/128]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v, %v, want %s", got, err, want)
	}
	for _, bad := range []string{"", "proxy.test", "10.0.0.0/33", "10.0.0", "::ffff:10.0.0.1", "10.0.0.1:80"} {
		_, err := prefixes("--trusted-proxies", []string{bad})
		if err == nil || !strings.Contains(err.Error(), "--trusted-proxies") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A zero Config has the same defaults as the flags on the command line.
func TestZeroConfigIsWhatTheCommandLineGives(t *testing.T) {
	for _, entry := range os.Environ() {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "FLEETD_") || name == "DATABASE_URL" {
			t.Setenv(name, value) // restores it
			os.Unsetenv(name)
		}
	}
	t.Chdir(t.TempDir())
	var flags, zero Config
	parser, err := kong.New(&flags)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(nil); err != nil {
		t.Fatal(err)
	}
	// Settings that the command line turns on.
	zero.CollectDumps, zero.ConversationWait, zero.AlertRetention = true, 10*time.Minute, 90*24*time.Hour
	zero.BlobRetention = 24 * time.Hour
	zero.SessionIdle, zero.DrainTimeout = 12*time.Hour, 90*time.Second
	for _, c := range []*Config{&flags, &zero} {
		if err := c.check(); err != nil {
			t.Fatal(err)
		}
		if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(flags, zero, cmp.AllowUnexported(Config{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the command line's defaults (-) differ from those of a Config (+):\n%s", diff)
	}
}

func TestUnusableConfigs(t *testing.T) {
	for want, c := range map[string]Config{
		"--enrolment":    {Enrolment: "maybe"},
		"--serial-proof": {SerialProof: "maybe"},
		"--max-waiting":  {MaxWaiting: -1},
		"--mqtts-addr":   {MQTTSAddr: ":0"},
		"--events-mqtts-addr needs a certificate": {EventsMQTTSAddr: ":0"},
		"--home-assistant":                        {HomeAssistant: true},
		"--public-url":                            {PublicURL: "ftp://h"},
		"--mqtt-endpoint":                         {MQTTEndpoint: "h:0"},
		"--mqtt-keepalive":                        {MQTTKeepalive: 9 * time.Second},
		"--require-signed":                        {RequireSigned: true},
	} {
		_, err := Start(t.Context(), c)
		var usage UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want a UsageError about %s", c, err, want)
		}
	}
}

// A process may stand by only with a database and blobs that another process can use, too.
func TestConfigOfAStandby(t *testing.T) {
	const database, bucket = "postgres://u@db/fleet", "s3://fleet/blobs"
	for _, tt := range []struct {
		name string
		cfg  Config
		want string // part of the error; "": accepted
	}{
		{"S3", Config{Database: Database{DatabaseURL: database}, BlobURL: bucket}, ""},
		{"a shared directory", Config{Database: Database{DatabaseURL: database}, BlobURL: "file:///mnt/blobs",
			BlobsShared: true}, ""},
		{"a shared data directory", Config{Database: Database{DatabaseURL: database}, BlobsShared: true}, ""},
		{"a directory", Config{Database: Database{DatabaseURL: database}, BlobURL: "file:///mnt/blobs"}, "--blobs-shared"},
		{"the data directory", Config{Database: Database{DatabaseURL: database}}, "--blobs-shared"},
		{"the embedded database", Config{BlobURL: bucket}, "--database-url"},
		{"a demo", Config{Database: Database{DatabaseURL: database}, BlobURL: bucket, Demo: 3}, "demo"},
		{"a voice server of a demo", Config{Database: Database{DatabaseURL: database}, BlobURL: bucket, DemoVoice: true},
			"demo"},
	} {
		if err := (&checkConfig{tt.cfg}).Run(); err != nil {
			t.Errorf("%s, without --standby: %v", tt.name, err)
		}
		tt.cfg.Standby = true
		err := (&checkConfig{tt.cfg}).Run()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	// Start refuses before it opens anything.
	_, err := Start(t.Context(), Config{Standby: true, AdminAddr: "127.0.0.1:0"})
	var usage UsageError
	if !errors.As(err, &usage) {
		t.Errorf("started: %v", err)
	}
}
