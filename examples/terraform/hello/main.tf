# Only the built-in provider: nothing is downloaded and nothing outside this machine is touched.
terraform {
  required_version = ">= 1.5"
}

variable "greeting" {
  type        = string
  description = "What the greeters say."
}

variable "greeters" {
  type    = number
  default = 3
}

resource "terraform_data" "greeter" {
  count = var.greeters
  input = "${var.greeting} from greeter ${count.index + 1}"

  # Prints for a few seconds, so that the live log has something to show.
  provisioner "local-exec" {
    command = "for i in 1 2 3; do echo \"$MESSAGE ($i of 3)\"; sleep 0.4; done"
    environment = {
      MESSAGE = self.input
    }
  }
}

output "greetings" {
  value = terraform_data.greeter[*].output
}
