// Runs every test in a process of its own: a crash or an endless loop costs one test.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  auto& all = ::testing::entries();
  for (auto& expand : ::testing::expansions()) expand(all);
  for (auto& entry : all) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      auto& info = ::testing::UnitTest::GetInstance()->info;
      info.suite_ = entry.suite, info.name_ = entry.name;
      vkep::file().open(argv[1], std::ios::binary | std::ios::app);
      int code = 0;
      try {
        entry.run();
      } catch (const std::exception& error) {
        code = 1;
      } catch (...) {
        code = 1;
      }
      vkep::file().close();
      _exit(code);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const bool ended = WIFEXITED(status);
    std::printf("%s.%s %s\n", entry.suite.c_str(), entry.name.c_str(),
                !ended ? "crashed" : WEXITSTATUS(status) ? "threw" : "ran");
    std::fflush(stdout);
  }
}
