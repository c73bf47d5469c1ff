package server

import (
	"encoding/json"
	"net/url"
	"os"
	"strings"
)

type ConfigCommand struct {
	Check checkConfig `cmd:"" help:"Check the configuration from flags and environment, and exit."`
	Print printConfig `cmd:"" help:"Print the configuration in effect as JSON, without secrets."`
}

type checkConfig struct{ Config }

func (c *checkConfig) Run() error { return c.check() }

type printConfig struct{ Config }

func (c *printConfig) Run() error {
	if err := c.check(); err != nil {
		return err
	}
	c.DatabaseURL, c.AdminPassword = redactURL(c.DatabaseURL), redact(c.AdminPassword)
	c.VoiceSecret, c.SMTPURL = redact(c.VoiceSecret), redactURL(c.SMTPURL)
	c.VisionURL, c.VisionToken = redactURL(c.VisionURL), redact(c.VisionToken)
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(c.Config)
}

func redact(secret string) string {
	if secret == "" {
		return ""
	}
	return "(set)"
}

// redactURL hides possible passwords: the password of a URL, its parameters,
// and the whole text in the other form, key=value pairs.
func redactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" {
		return redact(s)
	}
	q := u.Query()
	for name := range q {
		if strings.Contains(name, "password") {
			q.Set(name, "xxxxx")
		}
	}
	u.RawQuery = q.Encode()
	return u.Redacted()
}
